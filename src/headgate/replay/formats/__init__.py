"""Formats of logs: how a line becomes a record, and which format a log has."""

from headgate.replay.formats.base import Format, Unreadable
from headgate.replay.formats.detection import FORMATS, find_format

__all__ = ["FORMATS", "Format", "Unreadable", "find_format"]
