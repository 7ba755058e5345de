"""Which version of the package is this?"""

__version__ = "0.1.0"
