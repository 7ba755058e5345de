"""Which version does the package have?"""

__version__ = "0.1.0"
