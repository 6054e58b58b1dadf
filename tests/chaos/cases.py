"""All cases, in the order of the table."""

from tests.chaos import clocks, crowds, failovers, outages, regions

CASES = (*failovers.CASES, *outages.CASES, *crowds.CASES, *clocks.CASES, *regions.CASES)
