from array import array

CONTRACT: int
IS_SWITCHED_OFF: int

def piece_checksums(
    seeds: int | array[int], data: bytes | bytearray | memoryview, lengths: array[int], /
) -> bytes: ...
