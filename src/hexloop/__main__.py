"""`python -m hexloop` is the command `hexloop`."""

from hexloop.app.command_line import main

raise SystemExit(main())
