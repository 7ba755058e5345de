"""Where do the tests find the programs that measure?"""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "benches"))
