"""One module per subcommand of `analysis`: parse, call, print. Heavy imports happen inside the commands."""
