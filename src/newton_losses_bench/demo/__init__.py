"""The demonstration: five losses train the same small network side by side in two minutes, and a page.

`task.py` has what is trained, `page.py` and `page.html` the page. The training is a sweep like any other.
"""

from .page import TEN_LINES as TEN_LINES
from .page import Row as Row
from .page import in_blocks as in_blocks
from .page import read_evaluations as read_evaluations
from .page import summarise as summarise
from .page import verdict as verdict
from .page import write_page as write_page
from .task import ARMS as ARMS
from .task import DEMO as DEMO
from .task import arm_config as arm_config
from .task import demo_jobs as demo_jobs
from .task import sample_sets as sample_sets
