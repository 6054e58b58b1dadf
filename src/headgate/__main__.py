"""`python -m headgate` is `headgate`."""

from headgate.cli import main

if __name__ == "__main__":
    main()
