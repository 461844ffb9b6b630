"""jointenergy: joint energy-based models of data and labels."""

__version__ = "0.1.0.dev0"
