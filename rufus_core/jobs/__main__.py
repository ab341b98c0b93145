"""`python -m rufus_core.jobs DOCUMENT.json`"""

import sys
from pathlib import Path

from rufus_core.jobs.run import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
