"""What was measured: the store of finished runs, and the statistics of the paper over them."""

from ._record import RunRecord as RunRecord
from ._record import UnreadableRecord as UnreadableRecord
from ._record import read_record as read_record
from ._statistics import LEVEL as LEVEL
from ._statistics import Summary as Summary
from ._statistics import baseline_mark as baseline_mark
from ._statistics import mark as mark
from ._statistics import p_value as p_value
from ._statistics import paired_p_value as paired_p_value
from ._statistics import summarise as summarise
from ._statistics import summarise_all as summarise_all
from ._store import Store as Store
from ._store import UnfinishedRun as UnfinishedRun
from ._store import compact as compact
