"""The report: what was measured beside what the paper says, as one HTML page and as Markdown.

`_compose.py` says what is in it, out of the parts in `_blocks.py`; `_html.py` and `_markdown.py` write them down.
"""

from ._write import write_report as write_report
