"""Log formats: parse lines into records, and detect a log's format."""

from headgate.replay.formats.base import Format, Unreadable
from headgate.replay.formats.detection import FORMATS, find_format

__all__ = ["FORMATS", "Format", "Unreadable", "find_format"]
