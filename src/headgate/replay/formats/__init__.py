"""Log formats: parse lines into records, and detect a log's format."""

from headgate.replay.formats.base import Format
from headgate.replay.formats.detection import FORMATS, find_format

__all__ = ["FORMATS", "Format", "find_format"]
