"""All cases, in the order of the table."""

from tests.chaos import clocks, crowds, failovers, leases, outages, regions, starved

CASES = (*failovers.CASES, *outages.CASES, *crowds.CASES, *leases.CASES, *clocks.CASES, *regions.CASES, *starved.CASES)
