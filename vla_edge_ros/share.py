"""Where the files beside the code lie: config, launch, kernels and the sample recording."""

import os
import sys
from collections.abc import MutableMapping
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


def use_large_image_profile(environment: MutableMapping[str, str]) -> None:
    """Have Fast DDS load the profile that carries whole images; one of the user's own stays in force.

    Humble, Iron and Jazzy read another variable than Kilted and newer, which warn where the old one is set.
    """
    is_old = environment.get("ROS_DISTRO") in ("humble", "iron", "jazzy")
    variable = "FASTRTPS_DEFAULT_PROFILES_FILE" if is_old else "FASTDDS_DEFAULT_PROFILES_FILE"
    environment.setdefault(variable, str(share_directory() / "config/fastdds.xml"))
