"""Policies and configurations as names and numbers in a file, and back."""

from dataclasses import is_dataclass
from typing import Any

from kvib.files.storage import OtherFileError
from kvib.names import CONFIGURATIONS, POLICIES


def describe(config: Any) -> dict[str, Any] | None:
    """The name and the fields of one of kvib's frozen configurations, which may be nested."""
    if config is None:
        return None
    fields = {
        name: describe(value) if is_dataclass(value) else value
        for name, value in vars(config).items()
    }
    return {"name": type(config).__name__, "fields": fields}


def described(description: dict[str, Any] | None) -> Any:
    """The configuration that `describe` described, made again."""
    if description is None:
        return None
    if description["name"] not in CONFIGURATIONS:
        raise OtherFileError(
            f"this kvib has no {description['name']}; install the kvib that wrote the file"
        )
    fields = {
        k: described(v) if isinstance(v, dict) else v for k, v in description["fields"].items()
    }
    return CONFIGURATIONS[description["name"]](**fields)


def describe_policy(policy: Any) -> dict[str, Any] | None:
    """The name and the numbers of one of kvib's own policies, None for a policy of the user."""
    name = type(policy).__name__
    return {"name": name, "fields": vars(policy)} if POLICIES.get(name) is type(policy) else None


def restore_policy(description: dict[str, Any] | None, policy: Any | None) -> Any:
    """The policy that was saved: the described one, or the one that the user gave."""
    if description is not None:
        if policy is not None and type(policy).__name__ != description["name"]:
            raise OtherFileError(
                f"the file was saved with {description['name']}, not {type(policy).__name__}; "
                "load it with the policy that was saved"
            )
        try:
            return (
                POLICIES[description["name"]](**description["fields"]) if policy is None else policy
            )
        except (KeyError, TypeError) as error:
            raise OtherFileError(
                f"this kvib has no policy {description}; install the kvib version that wrote it"
            ) from error
    if policy is None:
        raise OtherFileError(
            "the file was saved with a policy of your own; give it: Sampler.load(path, policy=…)"
        )
    return policy
