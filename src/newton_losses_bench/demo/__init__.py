"""The demonstration: a few small networks trained side by side in about two minutes, and a page about them.

What is trained is in `_setting.py`, the training in `_runs.py`, the pictures and the page in `_pictures.py` and
`_page.py`.
"""

from ._page import write_page as write_page
from ._runs import train_arms as train_arms
from ._setting import ARMS as ARMS
from ._setting import Arm as Arm
from ._setting import DemoConfig as DemoConfig
from ._summary import summarise as summarise
