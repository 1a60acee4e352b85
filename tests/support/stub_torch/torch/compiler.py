TRACING = False


def is_compiling() -> bool:
    return TRACING
