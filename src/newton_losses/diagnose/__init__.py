"""What is wrong with a loss, and what would a Newton loss change? Measured at the user's own outputs (layer 2)."""

from ._derivatives import Derivatives as Derivatives
from ._derivatives import Precision as Precision
from ._descent import Candidate as Candidate
from ._descent import Descent as Descent
from ._descent import Line as Line
from ._diagnose import diagnose as diagnose
from ._measurements import Eigenvalues as Eigenvalues
from ._measurements import Gradients as Gradients
from ._measurements import Noise as Noise
from ._measurements import Spectra as Spectra
from ._report import Report as Report
from ._verdict import GROWS as GROWS
from ._verdict import LEADS as LEADS
from ._verdict import Recommendation as Recommendation
from ._verdict import Verdict as Verdict
