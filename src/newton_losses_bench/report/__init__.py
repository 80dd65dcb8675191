"""The report: what was measured beside what the paper says, as one HTML page and as docs/evidence.md.

`collect` reads the runs; `claims` and `paper_claims`, `tables` and `figures` say what follows; `sections` puts it in
order; `render` writes pages.
"""

from .collect import Evidence as Evidence
from .collect import Runs as Runs
from .collect import gather as gather
from .render import to_markdown as to_markdown
from .render import write_evidence as write_evidence
from .render import write_report as write_report
from .sections import Report as Report
from .sections import compose as compose
