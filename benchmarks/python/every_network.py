"""One small network of each type that transformers has: gradients under budgets and with checkpoints, beside plain ones.

Configurations are made small by the names of their entries, and inputs by the names of arguments. A type that does not run
plainly like this is left out, as are those whose plain steps differ, and those of many bytes.
"""

import contextlib
import copy
import inspect
import io
import warnings

from models import same  # first: it keeps transformers off the network
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import reprise
from budgets import peak_of, under

SHARES = (0.7, 0.45, 0.3)
STEPS = 4  # budgets learn from the first ones
BATCH, WORDS, SIDE = 4, 120, 32
MOST_PARAMETERS, MOST_BYTES = 60_000_000, 200_000_000
# Entries of configurations, and the most that they may be.
SMALL = {most: names.split() for most, names in {
    WORDS: "vocab_size text_vocab_size src_vocab_size tgt_vocab_size",
    64: "max_position_embeddings n_positions n_ctx max_seq_len intermediate_size d_ff n_inner encoder_ffn_dim decoder_ffn_dim ffn_dim "
        "ffn_hidden_size d_inner moe_intermediate_size shared_expert_intermediate_size feed_forward_hidden_size",
    32: "hidden_size d_model n_embd dim embed_dim hidden_dim embedding_size text_hidden_size model_dim d_embed emb_dim image_size",
    8: "head_dim d_kv attention_head_size patch_size",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_key_value_heads "
       "attention_heads num_experts num_local_experts n_routed_experts",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers depth "
       "layers decoder_num_layers num_experts_per_tok",
}.items()}
SPECIAL = "pad bos eos sep cls decoder_start image audio video".split()


def shrink(config, depth=0):
    """The configuration, made small like those inside it."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig) and depth < 3:
            shrink(value, depth + 1)
        most = next((most for most, names in SMALL.items() if name in names), None)
        if type(value) is int and most is not None and value > most:
            with contextlib.suppress(Exception):  # some names are derived from others
                setattr(config, name, most)
    if isinstance(kinds := getattr(config, "layer_types", None), list):
        config.layer_types = (2 * kinds)[:getattr(config, "num_hidden_layers", 2)]
    for name in (f"{each}_token_{suffix}" for each in SPECIAL for suffix in ("id", "index")):
        if type(value := getattr(config, name, None)) is int and value >= WORDS:
            setattr(config, name, 1)
    return config


def inputs_of(model):
    names, main, kind = inspect.signature(model.forward).parameters, model.main_input_name, model.config.model_type
    found, side = {}, getattr(model.config, "image_size", SIDE)
    if "input_ids" in names:
        found = {"input_ids": torch.randint(3, WORDS - 20, (BATCH, 48))}
        if "attention_mask" in names:
            found["attention_mask"] = torch.ones(BATCH, 48, dtype=torch.int64)
    if "decoder_input_ids" in names:
        found["decoder_input_ids"] = torch.randint(3, WORDS - 20, (BATCH, 40))
    if main == "pixel_values" or "pixel_values" in names and ("input_ids" not in names or "clip" in kind or "blip" in kind):
        side = side if isinstance(side, int) else SIDE
        found["pixel_values"] = torch.randn(BATCH, getattr(model.config, "num_channels", 3) or 3, side, side)
    if main == "input_values":
        found["input_values"] = torch.randn(BATCH, 4000)
    if main == "input_features":
        found.pop("attention_mask", None)
        found["input_features"] = torch.randn(BATCH, getattr(model.config, "num_mel_bins", 80), 3000 if kind == "whisper" else 100)
    return found


def tensors_of(output):
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() and output.requires_grad else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [each for part in parts for each in tensors_of(part)]


class Network:
    """A step always starts from the same weights and buffers, with the same random numbers. The memory of gradients stays."""

    def __init__(self, kind):
        torch.manual_seed(1)
        config = shrink(CONFIG_MAPPING[kind]())
        with torch.device("meta"):
            count = sum(each.numel() for each in transformers.AutoModel.from_config(copy.deepcopy(config)).parameters())
        if count > MOST_PARAMETERS:
            raise ValueError("too many parameters")
        self.model = transformers.AutoModel.from_config(config).train()
        self.inputs, self.state = inputs_of(self.model), copy.deepcopy(self.model.state_dict())

    def step(self):
        torch.manual_seed(0)
        loss = sum(each.float().square().mean() for each in tensors_of(self.model(**self.inputs)))
        loss.backward()
        return loss.detach()

    def gradients(self, step=None):
        """And the loss. `step`: runs step()."""
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=False)
        loss = (step or self.step)()
        return [loss, *(None if each.grad is None else each.grad.nan_to_num() for each in self.model.parameters())]


def plain(kind):
    """The network with its gradients and the bytes of a step. None where it is left out."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            network = Network(kind)
            expected = network.gradients()
            is_steady = same(network.gradients(), expected)
            peak = peak_of(network.step)
        except Exception:  # whatever transformers raises where the inputs do not suit
            return None
    return (network, expected, peak) if is_steady and peak <= MOST_BYTES else None


def within(network, expected, share, peak):
    """Whether steps in that share of the peak have the expected gradients. None where the budget cannot be kept."""
    budget = reprise.MemoryBudget(reprise.live_bytes() + int(share * peak))
    is_same = True
    try:
        for _ in range(STEPS):
            is_same &= same(network.gradients(under(budget, network.step)), expected)
            budget.wait_for_plan(30)
    except reprise.BudgetError:
        return None
    return is_same


def checkpointed(network):
    """Gradients with torch's checkpoint in each layer, and with ours in its place; None where torch's cannot run."""
    try:
        theirs = _with_checkpoints(network)
    except Exception:  # such as of a cache of keys to which the second forward appends again
        return None
    reprise.install()
    try:
        return theirs, _with_checkpoints(network)
    finally:
        reprise.uninstall()


def _with_checkpoints(network):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions have another name for the method, and say so
        network.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return network.gradients()


def networks(figures, quick):
    """How many are bitwise the plain step's within each share of its peak, and with checkpoints those of torch's."""
    kinds = ["bert", "gpt2", "t5", "vit"] if quick else [each for each in CONFIG_MAPPING if each in MODEL_MAPPING_NAMES]
    ran, wrong = {}, {}
    count = 0
    for kind in kinds:
        if (known := plain(kind)) is None:
            continue
        network, expected, peak = known
        count += 1
        cases = {f"within {share:.0%}": within(network, expected, share, peak) for share in SHARES}
        pair = checkpointed(network)
        cases["checkpoints, beside torch's"] = same(*pair) if pair else None
        for case, is_same in cases.items():
            ran[case] = ran.get(case, 0) + (is_same is not None)
            wrong.setdefault(case, []).extend([kind] * (is_same is False))
    for case, number in ran.items():
        figures.add("python_every_network", f"{number} of {count} networks {case}: not bitwise" +
                    (f", {', '.join(wrong[case])}" if wrong[case] else ""), [len(wrong[case])], "networks", bar=0)


BENCHES = {"python_every_network": networks}
