"""JAX's flags, as `config` takes them: those that mean one of its settings, those that only the
runtime of JAX has a use for, which are remembered and change nothing, and those of which only one
value is what happens here."""

from __future__ import annotations

from typing import Any

_BOOL, _INT, _NUMBER, _TEXT = (bool,), (int,), (int, float), (str, type(None))
_KINDS = {"gpu": "cuda", "rocm": "cuda"}

# Flags under another name than the setting's. All others of the same name are the setting.
RENAMED = {
    "jax_compilation_cache_dir": "cache",
    "jax_default_device": "device",
    "jax_enable_checks": "check",
    "jax_platform_name": "device",
    "jax_platforms": "device",
}

# Flags of JAX's compiler, runtime and tracebacks, with the types of their values.
WITHOUT_EFFECT: dict[str, tuple[type, ...]] = {
    "jax_allow_f16_reductions": _BOOL,
    "jax_captured_constants_report_frames": _INT,
    "jax_captured_constants_warn_bytes": _INT,
    "jax_compilation_cache_include_metadata_in_key": _BOOL,
    "jax_compilation_cache_max_size": _INT,
    "jax_compiler_enable_remat_pass": _BOOL,
    "jax_cpu_collectives_implementation": _TEXT,
    "jax_cpu_enable_async_dispatch": _BOOL,
    "jax_cuda_visible_devices": _TEXT,
    "jax_debug_log_modules": _TEXT,
    "jax_disable_most_optimizations": _BOOL,
    "jax_dump_ir_modes": _TEXT,
    "jax_dump_ir_to": _TEXT,
    "jax_embedded_constants_max_bytes": _INT,
    "jax_enable_compilation_cache": _BOOL,
    "jax_enable_custom_prng": _BOOL,
    "jax_enable_pgle": _BOOL,
    "jax_exec_time_optimization_effort": _NUMBER,
    "jax_explain_cache_misses": _BOOL,
    "jax_include_full_tracebacks_in_locations": _BOOL,
    "jax_log_checkpoint_residuals": _BOOL,
    "jax_logging_level": _TEXT,
    "jax_memory_fitting_effort": _NUMBER,
    "jax_memory_fitting_level": (str, int),
    "jax_optimization_level": (str, int),
    "jax_persistent_cache_enable_xla_caches": _TEXT,
    "jax_persistent_cache_min_compile_time_secs": _NUMBER,
    "jax_persistent_cache_min_entry_size_bytes": _INT,
    "jax_pprint_use_color": _BOOL,
    "jax_raise_persistent_cache_errors": _BOOL,
    "jax_softmax_custom_jvp": _BOOL,
    "jax_threefry_gpu_kernel_lowering": _BOOL,
    "jax_traceback_filtering": _TEXT,
    "jax_traceback_in_locations_limit": _INT,
    "jax_tracer_error_num_traceback_frames": _INT,
    "jax_use_direct_linearize": _BOOL,
    "jax_use_shardy_partitioner": _BOOL,
}

# Flags that would change what programs do, with the value that holds here.
FIXED: dict[str, Any] = {
    "jax_array_garbage_collection_guard": "allow",
    "jax_debug_key_reuse": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_explicit_x64_dtypes": "allow",
    "jax_high_dynamic_range_gumbel": False,
    "jax_legacy_prng_key": "allow",
    "jax_no_execution": False,
    "jax_no_tracing": False,
    "jax_num_cpu_devices": 1,
    "jax_numpy_rank_promotion": "allow",
    "jax_random_seed_offset": 0,
    "jax_threefry_partitionable": True,
    "jax_transfer_guard": "allow",
    "jax_transfer_guard_device_to_device": "allow",
    "jax_transfer_guard_device_to_host": "allow",
    "jax_transfer_guard_host_to_device": "allow",
}


def setting_of(name: str) -> str:
    """The setting that a flag means, if it means one.

    >>> setting_of("jax_enable_checks"), setting_of("jax_enable_x64")
    ('check', 'enable_x64')
    """
    return RENAMED.get(name, name.removeprefix("jax_"))


def value_for(name: str, value: Any) -> Any:
    """A flag's value as its setting has it.

    >>> value_for("jax_platforms", "gpu,cpu"), value_for("jax_compilation_cache_dir", None)
    ('cuda', '')
    """
    setting = RENAMED.get(name)
    if setting is None or value is None:
        return value if setting is None else ""
    if setting != "device":
        return value
    text = value if isinstance(value, str) else getattr(value, "name", value)
    first = text.split(",")[0].strip() if isinstance(text, str) else text
    return _KINDS.get(first, first)


def check(name: str, value: Any) -> bool:
    """Whether a name is that of a flag that means no setting; its value must be one it can have.

    Raises ValueError if it is not.

    >>> check("jax_traceback_filtering", "off"), check("jax_traceback", "off")
    (True, False)
    """
    if name in FIXED:
        if type(value) is not type(FIXED[name]) or value != FIXED[name]:
            raise ValueError(
                f"config: {name} must be {FIXED[name]!r}, which is what happens here; other values "
                f"are not supported; got {value!r}."
            )
        return True
    if name not in WITHOUT_EFFECT:
        return False
    kinds = WITHOUT_EFFECT[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        allowed = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"config: {name} must be of type {allowed}; got {value!r}.")
    return True
