"""Downloads against a server on this machine: mirrors that fail in every way."""

import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from newton_losses_bench.data import MNIST, DataError, DataNotFoundError, digits
from newton_losses_bench.data.files import fetch

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """The first part of the path says how the mirror behaves."""

    def do_GET(self):
        _, behaviour, name = self.path.split("/")
        self.server.requests.append((behaviour, name))
        body = self.server.files.get(name, CONTENT)
        if behaviour == "missing":
            self.send_error(404)
            return
        if behaviour == "garbage":
            body = b"<html>maintenance</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # "truncated" promises all of it and hangs up in the middle.
        self.wfile.write(body[: len(body) // 2] if behaviour == "truncated" else body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.files = [], {}
    server.mirror = lambda behaviour: f"http://127.0.0.1:{server.server_port}/{behaviour}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_comes_whole_and_only_once(server, tmp_path):
    for _ in range(2):
        path = fetch(tmp_path / "new", "data", MD5, [server.mirror("good")])
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]


@pytest.mark.parametrize("behaviour", ["missing", "garbage", "truncated"])
def test_the_next_mirror_is_asked_when_one_fails(server, tmp_path, behaviour):
    path = fetch(tmp_path, "data", MD5, [server.mirror(behaviour), server.mirror("good")])
    assert path.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_server_that_is_not_there_is_passed_over(server, tmp_path):
    path = fetch(tmp_path, "data", MD5, ["http://127.0.0.1:9", server.mirror("good")])
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("behaviour", ["missing", "garbage", "truncated"])
def test_without_a_good_mirror_nothing_is_taken_for_the_file(server, tmp_path, behaviour):
    with pytest.raises(DataError, match=f"data could not be downloaded.*{behaviour}/data"):
        fetch(tmp_path, "data", MD5, [server.mirror(behaviour)])
    assert not (tmp_path / "data").exists()


def test_what_an_interrupted_download_left_is_overwritten(server, tmp_path):
    (tmp_path / "data.part").write_bytes(b"other bytes")
    assert fetch(tmp_path, "data", MD5, [server.mirror("good")]).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_that_cannot_be_written_says_where_else_data_can_go(tmp_path):
    (tmp_path / "letter").write_text("hello")
    with pytest.raises(DataError, match=r"could not be written \(Not a directory\)\. Choose another folder"):
        fetch(tmp_path / "letter" / "raw", "file", "0" * 32, ["http://127.0.0.1:9"])


def test_a_damaged_file_is_fetched_again(server, tmp_path):
    (tmp_path / "data").write_bytes(CONTENT[:-1])
    assert fetch(tmp_path, "data", MD5, [server.mirror("good")]).read_bytes() == CONTENT


def test_runs_that_start_together_fetch_once(server, tmp_path):
    found = []

    def run():
        found.append(fetch(tmp_path, "data", MD5, [server.mirror("good")]).read_bytes())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4
    assert len(server.requests) == 1


def test_mnist_downloads_its_files_where_torchvision_keeps_them(server, tmp_path, monkeypatch):
    def packed(shape, size):
        header = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
        return gzip.compress(header + bytes(size))

    images, labels = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
    server.files = {images: packed((3, 28, 28), 3 * 784), labels: packed((3,), 3)}
    sums = {name: hashlib.md5(content).hexdigest() for name, content in server.files.items()}
    monkeypatch.setattr(digits, "FILE_SUMS", sums)
    monkeypatch.setattr(digits, "MIRRORS", [server.mirror("missing"), server.mirror("good")])
    with pytest.raises(DataNotFoundError, match="download=True"):
        MNIST(tmp_path, check=False)
    data = MNIST(tmp_path, download=True, check=False)
    assert data.images.shape == (3, 28, 28)
    assert (tmp_path / "MNIST" / "raw" / images).exists()
    count = len(server.requests)
    MNIST(tmp_path, download=True, check=False)
    assert len(server.requests) == count
    path = tmp_path / "MNIST" / "raw" / images
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="truncated or damaged"):
        MNIST(tmp_path, check=False)
    assert len(MNIST(tmp_path, download=True, check=False)) == 3
