"""A small interactive demo of the library, in memory: `make serve`."""

from __future__ import annotations

from collections.abc import Callable

from headgate import Decision, HeadgateError, Limiter, Quota

QUOTA = "5/5s"
HELP = """\
  check NAME [COST]     charge a request to NAME
  peek NAME             look, and charge nothing
  wait NAME [SECONDS]   sleep until it passes, at most that long (default 30)
  reset NAME            forget what NAME has used
  quota NOTATION        start anew with another quota: 100/minute, 10/second burst 20, 3/5s gcra
  help, quit
"""
INTRODUCTION = """\
Headgate, in memory. Everybody may make 5 requests in 5 seconds. Three commands to try:

  check alice 5         passes
  check alice           is refused: all five are used
  wait alice 10         sleeps until it passes

{help}"""


def show(decision: Decision) -> str:
    """One line that tells what a program would see."""
    if decision.allowed:
        return f"allowed    {decision.remaining} of {decision.limit} left, all again in {decision.reset_after:.3f} s"
    if decision.retry_after is None:
        return f"refused    never fits: the cost is above the limit of {decision.limit}"
    return f"refused    {decision.remaining} of {decision.limit} left, retry after {decision.retry_after:.3f} s"


class Demo:
    """Reads commands and answers them."""

    def __init__(self) -> None:
        self.limiter = Limiter(QUOTA)
        self.commands: dict[str, Callable[..., str]] = {
            "check": lambda name, cost="1": show(self.limiter.check(name, cost=int(cost))),
            "peek": lambda name: show(self.limiter.peek(name)),
            "wait": lambda name, seconds="30": show(self.limiter.wait(name, timeout=float(seconds))),
            "reset": self.reset,
            "quota": self.quota,
            "help": lambda: HELP,
        }

    def reset(self, name: str) -> str:
        self.limiter.reset(name)
        return show(self.limiter.peek(name))

    def quota(self, *notation: str) -> str:
        quota = Quota.parse(" ".join(notation))
        self.limiter = Limiter(quota)
        return f"now {quota}"

    def answer(self, line: str) -> str:
        name, *arguments = line.split()
        command = self.commands.get(name)
        if command is None:
            return f"no command {name!r}; type help"
        try:
            return command(*arguments)
        except (HeadgateError, ValueError) as error:
            return f"not done: {error}"
        except TypeError:
            return f"{name} takes other arguments; type help"


def main() -> None:
    demo = Demo()
    try:
        print(INTRODUCTION.format(help=HELP))
        while (line := input("> ").strip()) not in ("quit", "exit"):
            if line:
                print(demo.answer(line))
    except (EOFError, KeyboardInterrupt):
        print()
    print("Bye.")


if __name__ == "__main__":
    main()
