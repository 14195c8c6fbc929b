"""Every parameter of `vla_edge_node`, in the order in which the docs show them."""

from vla_edge_ros.engine.interface import MAX_ACTION_TOKENS
from vla_edge_ros.memory.policies import EMBEDDINGS, POLICIES
from vla_edge_ros.parameters.parameter import Parameter

CAMERA = (
    Parameter(
        "camera.is_compressed",
        False,
        "Whether `image` carries sensor_msgs/CompressedImage (true) or sensor_msgs/Image (false).",
    ),
    Parameter(
        "camera.resize",
        "stretch",
        "How a picture comes to the model's 128x64. `stretch` scales both sides on their own: the whole "
        "view and every patch are used, as in the reference. `letterbox` keeps proportions and pads with "
        "black. `center_crop` keeps proportions and loses the edges. Use what the policy was trained with.",
        allowed=("stretch", "letterbox", "center_crop"),
    ),
    Parameter(
        "camera.interpolation",
        "area",
        "`area` takes the mean of what a pixel covers and is free of aliasing; `linear` is faster and skips "
        "pixels when shrinking by more than two.",
        allowed=("area", "linear"),
    ),
    Parameter(
        "camera.max_age_ms",
        100.0,
        "A frame older than this when its tick starts is not used: the tick is HOLD_STALE_FRAME. Age counts "
        "from capture, or from receipt where the stamp cannot be trusted. With `control.deadline_from: "
        "capture` one as old as `control.deadline_ms` - `control.margin_ms` is not used either.",
        unit="ms",
        minimum=1.0,
        maximum=10_000.0,
        is_live=True,
    ),
    Parameter(
        "camera.future_tolerance_ms",
        10.0,
        "A stamp ahead of ROS time by no more than this counts as age 0; further ahead it is reported and "
        "the age counts from receipt.",
        unit="ms",
        minimum=0.0,
        maximum=1000.0,
    ),
    Parameter(
        "camera.foreign_clock_ms",
        5000.0,
        "A stamp further than this from ROS time, either way, is taken for another clock's (a simulator, a "
        "second computer): it is passed on unchanged and the age counts from receipt. Must be larger than "
        "`camera.max_age_ms`.",
        unit="ms",
        minimum=1.0,
        maximum=86_400_000.0,
    ),
    Parameter(
        "camera.frozen_after_frames",
        10,
        "After so many frames in a row with the stamp or the bytes of the one before, the camera is frozen: "
        "ERROR in /diagnostics.",
        unit="frames",
        minimum=1,
        maximum=10_000,
    ),
    Parameter(
        "camera.withhold_frozen",
        True,
        "Whether the frames of a frozen camera are withheld, so that the newest one grows old and the loop "
        "holds. A simulator that renders without noise can stand still honestly: false there.",
    ),
)

CONTROL = (
    Parameter(
        "control.period_ms",
        33.333,
        "Time from one tick to the next, on the steady clock.",
        unit="ms",
        minimum=5.0,
        maximum=1000.0,
    ),
    Parameter(
        "control.deadline_ms",
        33.0,
        "A tick's decision is published at the latest so long after the tick's start (its effect time). At "
        "most `control.period_ms`.",
        unit="ms",
        minimum=2.0,
        maximum=1000.0,
    ),
    Parameter(
        "control.margin_ms",
        2.0,
        "The wait for inference ends so long before the effect time, which leaves this time for deciding "
        "and publishing. Smaller than `control.deadline_ms`.",
        unit="ms",
        minimum=0.0,
        maximum=100.0,
    ),
    Parameter(
        "control.deadline_from",
        "tick",
        "What the deadline of a pass counts from. `tick`: the tick's start. `capture`: the capture of its "
        "frame as well, so that an older frame leaves its pass less time, and a fresh action is decided "
        "within `control.deadline_ms` of what it saw. When ticks are published does not change.",
        allowed=("tick", "capture"),
    ),
    Parameter(
        "control.priority",
        40,
        "SCHED_FIFO priority that every thread of the node is given, those of DDS too; 0 asks for none. "
        "Where the system refuses, the node warns and runs on. The default is below the 50 of "
        "ros2_control's controller_manager, whose loop must come first.",
        minimum=0,
        maximum=98,
    ),
    Parameter(
        "control.bare_loop",
        False,
        "Whether a bare loop in a process of its own sleeps to the same cut-offs and counts its late "
        "wake-ups: the lateness of the machine itself, to compare with.",
    ),
    Parameter(
        "control.record_path",
        "",
        "Where every tick's record is written to, for `vla-edge report`, `explain` and `replay --ticks`. A "
        "name that ends in `.mcap` becomes a folder of MCAP segments, of at most `control.record_bytes` "
        "together; a node that starts again goes on in it. Any other name is a file of "
        "JSON lines, which grows without limit and is replaced at each configuring. Empty: none.",
    ),
    Parameter(
        "control.record_bytes",
        256_000_000,
        "What the MCAP segments of `control.record_path` take at most: the oldest of 16 or more is deleted "
        "for a new one. Segments of earlier starts count.",
        unit="bytes",
        minimum=1_000_000,
        maximum=1_000_000_000_000,
    ),
)

ADMISSION = (
    Parameter(
        "admission.estimator",
        "conformal",
        "What decides whether a pass is begun. `conformal` keeps `admission.target_miss_rate`, see "
        "docs/admission.md. `ema`: the reference's moving averages. `fixed`: the medians of the "
        "first 31 passes. The last two promise nothing.",
        allowed=("conformal", "ema", "fixed"),
    ),
    Parameter(
        "admission.target_miss_rate",
        0.001,
        "Misses per tick that `conformal` keeps to in the long run: passes begun that are late, stopped or "
        "failed. Passes are refused where this costs fewer. 0.001 takes 3,000 ticks without a miss to show.",
        minimum=0.00001,
        maximum=0.499,
        is_live=True,
    ),
    Parameter(
        "admission.ema_alpha",
        0.2,
        "`ema`: weight of the newest sample in the moving averages of prefill and decode time. 1: only the "
        "newest counts.",
        minimum=0.001,
        maximum=1.0,
        is_live=True,
    ),
    Parameter(
        "admission.decay",
        0.9,
        "`ema`: factor on the predicted time at each refused tick, so that one slow pass cannot refuse for "
        "ever. 1: no ageing, only the probe below ends a run of refusals.",
        minimum=0.1,
        maximum=1.0,
        is_live=True,
    ),
    Parameter(
        "admission.probe_after_ticks",
        8,
        "`ema`, `fixed`: after so many refusals in a row the next tick is admitted whatever is predicted. "
        "The default comes before the hold timeout of `actions.max_hold_ms`.",
        unit="ticks",
        minimum=1,
        maximum=1000,
        is_live=True,
    ),
)

LADDER = (
    Parameter(
        "ladder.least_tokens",
        0,
        "Where a whole pass does not fit, fewer of the action's tokens are decoded, so many at least, and "
        "the other dimensions are held, in all no longer than `actions.max_hold_ms`. Tokens are decoded in "
        "the policy's order: only its last dimensions can be left out, and only joint deltas and grippers "
        "may be. 0: all are decoded.",
        unit="tokens",
        minimum=0,
        maximum=MAX_ACTION_TOKENS - 1,
    ),
    Parameter(
        "ladder.forget_frames",
        0,
        "Where a pass over all retained frames does not fit, so many are forgotten at most, by the eviction "
        "policy, if it fits then; so many more for each pass in a row before that could not be begun. What "
        "is forgotten stays so, and the arm acts on less: 0 never forgets for time.",
        unit="frames",
        minimum=0,
        maximum=127,
    ),
    Parameter(
        "ladder.least_frames",
        8,
        "So many retained frames stay, however little time there is.",
        unit="frames",
        minimum=1,
        maximum=127,
    ),
    Parameter(
        "ladder.reuse_ticks",
        0,
        "Where no pass fits and the picture has not changed since the last one, the last one's action is "
        "used again, in at most so many ticks in a row. An action that moves by a distance or at a speed "
        "moves again. In all no longer than `actions.max_hold_ms`. 0: never.",
        unit="ticks",
        minimum=0,
        maximum=1000,
    ),
    Parameter(
        "ladder.unchanged_levels",
        1.0,
        "A picture has not changed where no cell of 8x8 pixels of the model's 128x64 lies further from what "
        "it was, in the mean of any colour. It must be above the noise of the camera. 0: equal means.",
        unit="grey levels of 255",
        minimum=0.0,
        maximum=16.0,
    ),
)

MEMORY = (
    Parameter(
        "memory.policy",
        "semantic",
        "Which retained frame is forgotten when room is needed. `fifo`: the oldest. `sliding_window`: the "
        "oldest beyond `memory.window_frames`. `semantic`: of the two neighbours in time that look most "
        "alike, the older. `random`: any. `uniform_stride`: the one whose neighbours are nearest in time. "
        "`sinks_recent`: the oldest behind the first four. `temporal_redundancy`: the one most like the "
        "newest. `novelty`: the one most like any other. Of the NumPy engine alone: `heavy_hitter`, the one "
        "attended to least so far; `instruction_attention`, the one that the last actions attended to least; "
        "`value_norm`, the one of the shortest values. The prompt and the newest frame are never "
        "forgotten. docs/forgetting.md compares them.",
        allowed=POLICIES,
    ),
    Parameter(
        "memory.embedding",
        "auto",
        "By what frames are compared. `pooled`: the mean of the engine's patch embeddings, the reference's; "
        "it sees exposure and hardly motion. `patch_signature`: brightness and colour patch by patch, which "
        "sees motion and not exposure; it adds 0.05 ms to the camera callback. `key_summary`: the first "
        "layer's keys, patch by patch, of the NumPy engine alone. `auto`: patch_signature for `novelty` and "
        "`temporal_redundancy`, else pooled.",
        allowed=("auto", *EMBEDDINGS),
    ),
    Parameter(
        "memory.window_frames",
        24,
        "Frames that `sliding_window` retains; the other policies ignore it. Must fit into `memory.slots`.",
        unit="frames",
        minimum=1,
        maximum=127,
    ),
    Parameter(
        "memory.stride_ticks",
        1,
        "A frame is retained where the last retained one is at least so many ticks old. Frames between "
        "strides are acted on like any other and freed with the action tokens, so that the same slots reach "
        "further back: at 30 Hz and 1024 slots, 1 tick a stride is a second of memory and 30 are half a "
        "minute. Use what the policy was trained with.",
        unit="ticks",
        minimum=1,
        maximum=1000,
    ),
    Parameter(
        "memory.slots",
        1024,
        "Places of one token in the KV cache. With a prompt of P tokens it holds floor((slots - P - 8) / "
        "32) frames. The default is what the model `tiny` attends to in time on two CPU cores; 4096 is the "
        "reference's number for `qwen2.5-coder-1.5b`.",
        unit="tokens",
        minimum=64,
        maximum=4096,
    ),
    Parameter(
        "memory.prompt_slots",
        0,
        "Slots set aside for prompts, so that going back to an earlier instruction fills nothing in: prompts "
        "that are not in force any more stay there, the least recent ones give way. Frames have the others, "
        "whatever the instruction. 0: only the prompt in force has slots, and each is filled in whole.",
        unit="tokens",
        minimum=0,
        maximum=4056,
    ),
    Parameter(
        "memory.on_instruction",
        "reset",
        "What becomes of the retained frames when the instruction changes. `reset`: they are forgotten. "
        "`keep`: they stay, as they were seen under the instruction before, which is an approximation "
        "(docs/forgetting.md).",
        allowed=("reset", "keep"),
    ),
    Parameter(
        "memory.host_bytes",
        0,
        "Host memory for forgotten frames, of the NumPy engine. One that the scene resembles again comes "
        "back into the KV cache as it was, in exchange for another, in ticks with time to spare; it stays "
        "while the scene resembles it. Compare by `memory.embedding: patch_signature`. 0: what is forgotten "
        "never comes back.",
        unit="bytes",
        minimum=0,
        maximum=1_000_000_000_000,
    ),
    Parameter(
        "memory.recall_similarity",
        0.95,
        "Cosine at which a scene resembles a forgotten frame. To come back, that must also be twice as near "
        "as every retained frame.",
        minimum=0.0,
        maximum=1.0,
    ),
    Parameter(
        "memory.budget_bytes",
        8_000_000_000,
        "Weights, KV cache and workspace must fit into this, or configuring fails and says by how much.",
        unit="bytes",
        minimum=1_000_000,
        maximum=1_000_000_000_000,
    ),
)

ENGINE = (
    Parameter(
        "engine.backend",
        "auto",
        "What runs the model. `numpy`: any CPU. `cuda`: an NVIDIA GPU of sm_80 or later. `auto`: cuda where "
        "it can run, else numpy; the log says which and why. `fake`: no model, for trials of wiring and "
        "timing.",
        allowed=("auto", "numpy", "cuda", "fake"),
    ),
    Parameter(
        "engine.model",
        "tiny",
        "`tiny`, `qwen2.5-coder-0.5b`, `qwen2.5-coder-1.5b`, `qwen2.5-coder-3b` (all with seeded weights, "
        "whose actions mean nothing), `tiny-vla` (of the simulated arm of config/policies/tiny_vla.yaml; "
        "seeded where models/tiny-vla is missing), or a directory with config.json and safetensors of the "
        "Qwen2 family. With backend `fake`: `fake:service_ms=10,steps=8`.",
    ),
    Parameter(
        "engine.seed",
        0,
        "Seed of every weight that is not loaded. The same seed gives the same weights on every machine.",
        minimum=0,
        maximum=2**63 - 1,
    ),
    Parameter(
        "engine.plan",
        "",
        "The plan of the CUDA engine, as `plan_id` in `~/tick`, demo.json or a replay's JSON names it: tiles "
        "and splits decide in which order sums are formed. One that cannot be built again here is refused. "
        "Empty: the fastest on this device, measured at the first configuring and kept.",
    ),
    Parameter(
        "engine.blas_threads",
        1,
        "Threads of the NumPy engine's matrix products; 0: the library's own choice. More than there are "
        "free cores makes ticks late.",
        unit="threads",
        minimum=0,
        maximum=64,
    ),
    Parameter(
        "engine.stall_timeout_ms",
        2000.0,
        "An engine that has not answered so long after the deadline of its pass hangs: the tick is FAULT "
        "and the process is replaced, as a dead one is. A prompt has no deadline; it has so long for each "
        "of its tokens.",
        unit="ms",
        minimum=100.0,
        maximum=600_000.0,
        is_live=True,
    ),
    Parameter(
        "engine.restart_limit",
        3,
        "How often a dead or hanging engine process is replaced before the node stays stopped; 0: never.",
        minimum=0,
        maximum=100,
    ),
)

ACTIONS = (
    Parameter(
        "actions.policy_file",
        "",
        "YAML with joints, limits, kinds, statistics and controllers of the policy; empty: the bundled "
        "demo_arm.yaml.",
    ),
    Parameter(
        "actions.groups",
        (),
        "The groups of the policy file that are commanded; empty: all. The others are decided and not sent.",
    ),
    Parameter(
        "actions.ttl_ms",
        200.0,
        "Time to live, counted from capture: no action is executed later. It must cover the frame's age, "
        "the deadline and one action period of the policy, or nothing is left to send (HOLD_LATE).",
        unit="ms",
        minimum=5.0,
        maximum=10_000.0,
    ),
    Parameter(
        "actions.max_hold_ms",
        300.0,
        "Longest time without a fresh action; then the decision is SAFE_STOP. 0: stop at the first hold.",
        unit="ms",
        minimum=0.0,
        maximum=10_000.0,
    ),
    Parameter(
        "actions.min_lead_ms",
        20.0,
        "Action steps due sooner than this after the effect time are dropped and counted, since a "
        "controller cannot follow them any more. One period of the controller.",
        unit="ms",
        minimum=0.0,
        maximum=1000.0,
    ),
    Parameter(
        "actions.joint_state_max_age_ms",
        100.0,
        "Position and joint-delta kinds move only with `joint_states` younger than this.",
        unit="ms",
        minimum=1.0,
        maximum=10_000.0,
    ),
    Parameter(
        "actions.anchor",
        "effect",
        "What the steps of a chunk are timed from: the tick's effect time, or the frame's `capture` (only "
        "for absolute positions in chunks of several steps, once the arm follows a chunk).",
        allowed=("effect", "capture"),
    ),
    Parameter(
        "actions.late_result",
        "discard",
        "What becomes of a pass that finishes after its cut-off: `discard` it, or use it in the `next_tick`"
        " as FRESH_LATE within its time to live.",
        allowed=("discard", "next_tick"),
    ),
)

INSTRUCTION = (
    Parameter(
        "instruction.initial",
        "",
        "Instruction in force until the first message on `instruction`; empty: the system prompt alone.",
    ),
    Parameter(
        "instruction.system_prompt",
        "You control a robot arm. Do what the instruction says.",
        "Text before every instruction. Both are pinned in memory and take their tokens' slots from the "
        "frames.",
    ),
)

NODE = (*CAMERA, *CONTROL, *ADMISSION, *LADDER, *MEMORY, *ENGINE, *ACTIONS, *INSTRUCTION)
