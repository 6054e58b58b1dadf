"""All cases, in the order of the table."""

from tests.chaos import clocks, crowds, failovers, outages

CASES = (*failovers.CASES, *outages.CASES, *crowds.CASES, *clocks.CASES)
