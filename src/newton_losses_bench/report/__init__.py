"""The report: what was measured beside what the paper says, as one HTML page and as Markdown.

`_compose.py` says what is in it, out of the parts in `_blocks.py`; `_html.py` and `_markdown.py` write them down. The
other names are what `docs/evidence.py` makes its page from, so that both say the same of the same runs.
"""

from ._averaged import Averaged as Averaged
from ._averaged import averages as averages
from ._averaged import how_often_above as how_often_above
from ._chart import standalone as standalone
from ._commands import sweeps as sweeps
from ._damping import RUINED as RUINED
from ._damping import Advantage as Advantage
from ._damping import Automatic as Automatic
from ._damping import Chosen as Chosen
from ._damping import advantage as advantage
from ._damping import automatic as automatic
from ._damping import chosen as chosen
from ._damping import fixed_dampings as fixed_dampings
from ._damping import how_often_behind as how_often_behind
from ._evidence import Evidence as Evidence
from ._evidence import gather as gather
from ._figures import grid_panels as grid_panels
from ._goal import AVERAGING as AVERAGING
from ._goal import STATES as STATES
from ._goal import Standing as Standing
from ._goal import standings as standings
from ._measured import GRID as GRID
from ._measured import SELECTION as SELECTION
from ._measured import Runs as Runs
from ._measured import curved_cells as curved_cells
from ._names import column_title as column_title
from ._questions import GOAL as GOAL
from ._questions import GOAL_AVERAGED as GOAL_AVERAGED
from ._rules import LEAST_SEEDS as LEAST_SEEDS
from ._tables import signed as signed
from ._write import write_report as write_report
