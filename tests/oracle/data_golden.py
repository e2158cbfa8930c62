"""Prints tests/unit/data_golden.h: what Megatron itself reads and writes.

    pip install numpy megatron-core==0.16.1      (torch is not needed)
    python tests/oracle/data_golden.py > tests/unit/data_golden.h

The dataset classes of megatron-core run unchanged; torch, which they import
but do not use for building indices, is replaced by empty modules.
"""
import os
import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import numpy


class Anything(types.ModuleType):
    """A module of which every attribute exists."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def stand_in(name, **attributes):
    module = Anything(name)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None)
    for key, value in attributes.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


class Dataset:
    pass


stand_in("torch", __version__="2.6.0", Tensor=numpy.ndarray)
stand_in("torch.distributed", is_initialized=lambda: False)
stand_in("torch.utils")
stand_in("torch.utils.data", Dataset=Dataset)
sys.modules["torch"].distributed = sys.modules["torch.distributed"]
sys.modules["torch"].utils = sys.modules["torch.utils"]
sys.modules["torch.utils"].data = sys.modules["torch.utils.data"]
# megatron.core itself, without the imports of its __init__
import importlib.util

core = os.path.join(
    importlib.util.find_spec("megatron").submodule_search_locations[0], "core")
package = types.ModuleType("megatron.core")
package.__path__ = [core]
sys.modules["megatron.core"] = package
stand_in("megatron.core.utils", log_single_rank=lambda *a, **k: None)
stand_in("megatron.core.msc_utils",
         MultiStorageClientFeature=types.SimpleNamespace(
             is_enabled=lambda: False))
stand_in("megatron.core.tokenizers")

from megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder)
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

VOCAB = 50000


class Tokenizer:
    vocab_size = VOCAB
    pad, eod = -1, 0
    unique_identifiers = {"class": "Tokenizer"}


def document(salt, i):
    """Document i of the test data; data_test.c writes the same ones."""
    length = i * 7919 % 53 + (i % 5 == 0) * 40
    at = numpy.arange(length, dtype=numpy.int64)
    return (salt * 10007 + i * 211 + at * 17) % VOCAB


def write(prefix, salt, documents, dtype):
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for i in range(documents):
        tokens = document(salt, i)
        builder.add_document(tokens, [len(tokens)])
    builder.finalize(prefix + ".idx")


def fnv(data, seed=0xcbf29ce484222325):
    for byte in data:
        seed = (seed ^ byte) * 0x100000001b3 & (2**64 - 1)
    return seed


def dataset(prefixes, weights, split, part, seed, seq, samples):
    config = GPTDatasetConfig(
        random_seed=seed, sequence_length=seq, split=split,
        blend=(prefixes, weights), tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False,
        eod_mask_loss=False, path_to_cache=None, mid_level_dataset_surplus=0.005)
    sizes = [None] * 3
    for i in range(3):
        sizes[i] = samples if i == part else 1
    return BlendedMegatronDatasetBuilder(
        GPTDataset, sizes, lambda: True, config).build()[part]


def sample(data, i):
    if isinstance(data, BlendedDataset):
        return sample(data.datasets[data.dataset_index[i]],
                      data.dataset_sample_index[i])
    return data._query_document_sample_shuffle_indices(i)[0]


# sources, split, part, seed, seq, samples
CASES = [
    (1, "1", 0, 1234, 16, 60),         # less than one epoch
    (1, "1", 0, 1234, 16, 400),        # several epochs, the last apart
    (1, "1", 0, 3, 16, 444),           # three quarters of the last: apart
    (1, "1", 0, 7, 16, 790),           # several epochs, shuffled as one
    (1, "950,30,20", 0, 42, 8, 300),
    (1, "80,15,5", 1, 42, 8, 40),
    (1, "1", 0, 4294967295, 100, 64),  # samples over many documents
    (1, "1", 0, 0, 5000, 9),           # a sample longer than an epoch
    (2, "1", 0, 1234, 16, 500),
    (2, "1", 0, 1234, 16, 1447),       # the surplus asks for another epoch
    (3, "90,10", 0, 5, 32, 333),
    (3, "60,40", 1, 5, 32, 77),
    (11, "1", 0, 99, 16, 1000),
]


def blend_weights(n):
    return [round(0.1 + 0.37 * (i * i % 7), 2) for i in range(n)]


def main():
    print("/* data_golden.h - printed by tests/oracle/data_golden.py from")
    print(" * megatron-core 0.16.1 and numpy %s; do not edit. */"
          % numpy.__version__)
    with tempfile.TemporaryDirectory() as home:
        prefixes = []
        for salt in range(11):
            prefixes.append(os.path.join(home, f"d{salt}"))
            write(prefixes[-1], salt, 120 + salt,
                  numpy.uint16 if salt % 2 == 0 else numpy.int32)
        print("\nstatic const GoldenFile golden_files[] = {")
        for salt in (0, 1):
            for suffix in (".bin", ".idx"):
                data = open(prefixes[salt] + suffix, "rb").read()
                print("    {%d, \"%s\", %d, 0x%016xu}," %
                      (salt, suffix, len(data), fnv(data)))
        print("};\n\n/* The hash runs over the int32 tokens of all samples in"
              " order. */")
        print("static const GoldenOrder golden_orders[] = {")
        for n, split, part, seed, seq, samples in CASES:
            weights = blend_weights(n) if n > 1 else None
            data = dataset(prefixes[:n], weights, split, part, seed, seq,
                           samples)
            tokens = [sample(data, i).astype("<i4") for i in range(samples)]
            h = 0xcbf29ce484222325
            for t in tokens:
                assert len(t) == seq + 1
                h = fnv(t.tobytes(), h)
            print("    {%d, \"%s\", %d, %d, %d, %d, {%s}, {%s}, 0x%016xu}," %
                  (n, split, part, seed, seq, samples,
                   ", ".join(map(str, tokens[0][:4])),
                   ", ".join(map(str, tokens[-1][:4])), h))
        print("};\n")
    print("/* The weights of a blend of n sources. */")
    print("static const double golden_weights[] = {%s};"
          % ", ".join(map(str, blend_weights(11))))
    state = numpy.random.RandomState(1234)
    order = numpy.arange(20, dtype=numpy.uint32)
    state.shuffle(order)
    print("\n/* RandomState(1234).shuffle(arange(20)) */")
    print("static const uint32_t golden_shuffle[] = {%s};"
          % ", ".join(map(str, order)))


main()
