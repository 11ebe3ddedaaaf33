"""Policies and configurations as words in a file, and back."""

from dataclasses import is_dataclass
from typing import Any

from kvib.files.storage import OtherFileError
from kvib.names import CONFIGURATIONS, POLICIES


def describe(config: Any) -> dict[str, Any] | None:
    """Name and fields of one of kvib's frozen configurations, also inside one another."""
    if config is None:
        return None
    plain = {
        name: describe(value) if is_dataclass(value) else value
        for name, value in vars(config).items()
    }
    return {"name": type(config).__name__, "fields": plain}


def described(said: dict[str, Any] | None) -> Any:
    """The configuration that `describe` described."""
    if said is None:
        return None
    if said["name"] not in CONFIGURATIONS:
        raise OtherFileError(
            f"this kvib has no {said['name']}; install the kvib that wrote the file"
        )
    fields = {k: described(v) if isinstance(v, dict) else v for k, v in said["fields"].items()}
    return CONFIGURATIONS[said["name"]](**fields)


def describe_policy(policy: Any) -> dict[str, Any] | None:
    """Name and numbers of one of kvib's own policies, None for a user's."""
    name = type(policy).__name__
    return {"name": name, "fields": vars(policy)} if POLICIES.get(name) is type(policy) else None


def restore_policy(described: dict[str, Any] | None, given: Any | None) -> Any:
    """The policy that was saved: the one described, or the user's own."""
    if described is not None:
        if given is not None and type(given).__name__ != described["name"]:
            raise OtherFileError(
                f"the file was saved with {described['name']}, not {type(given).__name__}; "
                "load it with the policy that was saved"
            )
        try:
            return POLICIES[described["name"]](**described["fields"]) if given is None else given
        except (KeyError, TypeError) as error:
            raise OtherFileError(
                f"this kvib has no policy {described}; install the kvib version that wrote it"
            ) from error
    if given is None:
        raise OtherFileError(
            "the file was saved with a policy of your own; give it: Sampler.load(path, policy=…)"
        )
    return given
