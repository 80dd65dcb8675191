"""Is a loss worth a Newton loss, and if so which? Measured at the user's own outputs; a layer 2 like `newton.py`."""

from ._cost import Cost as Cost
from ._derivatives import Derivatives as Derivatives
from ._descent import Descent as Descent
from ._diagnose import diagnose as diagnose
from ._gradients import Gradients as Gradients
from ._noise import Noise as Noise
from ._precision import Precision as Precision
from ._report import Report as Report
from ._spectrum import Eigenvalues as Eigenvalues
from ._spectrum import Spectra as Spectra
from ._verdict import Recommendation as Recommendation
from ._verdict import Verdict as Verdict
