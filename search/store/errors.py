"""What a user did wrong, in one line."""


class UserError(ValueError):
    """The request cannot be carried out as it was made: exit code 2, the message and no traceback."""
