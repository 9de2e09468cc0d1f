"""An exported folder on the hub, by huggingface_hub: where its token lies, and how it uploads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from analysis.errors import AnalysisError, InputError
from trainables.contract.errors import first_line
from trainables.encoders.locate import HUB_SECONDS, available_folder

T = TypeVar("T")


def check_repository(repository: str) -> None:
    """Before anything is written: the name can be one, and there is a token that the hub takes.

    Raises: InputError for a name or token that is none; AnalysisError if the hub does not answer.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(f"--push-to-hub: {first_line(error)}") from None
    if get_token() is None:
        raise InputError(
            "--push-to-hub: no token of the hub on this machine; log in with `hf auth login`, or set HF_TOKEN"
        )
    _asked(repository, lambda: HfApi().whoami())


def push(folder: Path, repository: str, *, public: bool) -> str:
    """Upload a folder as a model of the hub, made if it is not there; its address.

    Raises: InputError if the repository is there and seen by others than asked for, or may not be written;
        AnalysisError if the hub does not answer.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    made = _asked(repository, lambda: api.create_repo(repository, private=not public, exist_ok=True))
    full = made.repo_id
    private = bool(_asked(full, lambda: api.model_info(full, timeout=HUB_SECONDS)).private)
    if private is public:
        kind, remedy = ("private", "leave --public out") if private else ("public", "give --public")
        raise InputError(f"--push-to-hub: {full} is there already and {kind}; {remedy}, or name another")
    _asked(full, lambda: api.upload_folder(repo_id=full, folder_path=folder, commit_message=f"Upload {folder.name}"))
    return str(made)


def base_licence(encoder: str, *, ask: bool) -> str | None:
    """The licence that an encoder's own card states: beside its files here, or (ask) on the hub; None = none found."""
    from huggingface_hub import HfApi, ModelCard

    if not encoder or encoder.startswith("builtin:"):
        return None
    folder = available_folder(encoder)
    try:
        if folder is not None and (folder / "README.md").is_file():
            found = ModelCard.load(folder / "README.md").data.license
        elif ask:
            name, _, revision = encoder.partition("@")
            card = HfApi().model_info(name, revision=revision or None, timeout=HUB_SECONDS).card_data
            found = card.license if card else None
        else:
            return None
    except Exception:  # a card that cannot be read, a folder's name, a hub that does not know it: no licence found
        return None
    return str(found) if found else None


def _asked(repository: str, question: Callable[[], T]) -> T:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return question()
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = getattr(error, "server_message", None) or first_line(error)
        if status == 401:
            raise InputError(
                f"--push-to-hub: the hub does not take the token ({why}); `hf auth login` again"
            ) from error
        if status in (403, 404):
            raise InputError(f"--push-to-hub: {repository}: not allowed to this token ({why})") from error
        raise AnalysisError(f"--push-to-hub: {repository}: the hub answers {status}: {why}") from error
    except Exception as error:  # the hub's client raises the HTTP library's and the system's errors, too
        raise AnalysisError(
            f"--push-to-hub: {repository}: {type(error).__name__}: {first_line(error)}; check the network"
        ) from error
