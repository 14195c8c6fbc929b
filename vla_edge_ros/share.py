"""Where the files beside the code lie: config, launch, kernels and the sample recording."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from vla_edge_ros.errors import UserError

PACKAGE = "vla_edge_ros"


def share_directory() -> Path:
    """The folder that holds `config/`, `launch/`, `cuda/` and `recordings/`.

    A checkout (also one installed as editable) is its own share folder; an installed package has
    `share/vla_edge_ros` under a prefix of AMENT_PREFIX_PATH or under the environment. Raises UserError.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "package.xml").is_file():
        return checkout
    prefixes = [prefix for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if prefix]
    candidates = [Path(prefix) / "share" / PACKAGE for prefix in [*prefixes, sys.prefix]]
    for candidate in candidates:
        if (candidate / "package.xml").is_file():
            return candidate
    looked_in = ", ".join(str(candidate) for candidate in candidates)
    raise UserError(
        f"the package's files are not found in {looked_in}: source the workspace's install/setup.bash"
    )


def profile_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables in which Fast DDS looks for a profile, the one to set first.

    Humble, Iron and Jazzy know the old name alone. Kilted and newer, and the wheels, which set no ROS_DISTRO,
    have a new one; they still take the old one, with a warning.
    """
    if environment.get("ROS_DISTRO") in ("humble", "iron", "jazzy"):
        return ("FASTRTPS_DEFAULT_PROFILES_FILE",)
    return ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


def large_image_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to `environment` for Fast DDS to load the profile that carries whole images.

    Nothing where it names a profile already: one of the user's own stays in force. Raises UserError.
    """
    variables = profile_variables(environment)
    if any(environment.get(variable) for variable in variables):
        return {}
    return {variables[0]: str(share_directory() / "config/fastdds.xml")}
