"""For `python -m newton_losses` alone: Ctrl-C while Python imports this package, and torch with it.

That happens before the command can begin, and nothing has been done yet: the process ends without a traceback. The
command installs its own handling as soon as it takes over.
"""

import signal
import sys

# While Python looks for the module that `-m` names, its arguments begin with "-m".
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
