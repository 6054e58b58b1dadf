"""All cases, in the order of the table."""

from tests.chaos import attacks, clocks, crowds, failovers, leases, outages, overload, regions, starved

CASES = (
    *failovers.CASES,
    *outages.CASES,
    *crowds.CASES,
    *starved.CASES,
    *overload.CASES,
    *leases.CASES,
    *clocks.CASES,
    *regions.CASES,
    *attacks.CASES,
)
