"""The models of the benches of compiled steps, and steps whose model is compiled."""

import contextlib
import functools
import gc
import types
import warnings

import torch
import transformers

import reprise
from compiled_random import least_of
from models import WORDS, Step, words

WIDTH, BATCH, LENGTH = 256, 8, 128
# All that a bench compares stays compiled: its models share the code of their forwards.
torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 256

if torch.version.cuda is None:  # PyPI's torchvision is for CUDA; without, these are all that importing it misses
    _missing = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _missing.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def gpt2(layers=4, width=WIDTH):
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=4, vocab_size=WORDS, n_positions=LENGTH)
    ids = words(BATCH, LENGTH)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def bert(layers=4, width=WIDTH):
    config = transformers.BertConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=4,
                                     intermediate_size=4 * width, vocab_size=WORDS, max_position_embeddings=LENGTH)
    ids = words(BATCH, LENGTH)
    return transformers.BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def albert(layers=4, width=WIDTH):
    """All layers have the same weights."""
    config = transformers.AlbertConfig(num_hidden_layers=layers, hidden_size=width, embedding_size=width, num_attention_heads=4,
                                       intermediate_size=4 * width, vocab_size=WORDS, max_position_embeddings=LENGTH)
    ids = words(BATCH, LENGTH)
    return transformers.AlbertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def vit(layers=4, width=WIDTH):
    config = transformers.ViTConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=4,
                                    intermediate_size=4 * width, image_size=44, patch_size=4, num_labels=10,
                                    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(BATCH, 3, 44, 44), "labels": torch.randint(0, 10, (BATCH,))}


def llama(layers=4, width=WIDTH):
    config = transformers.LlamaConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=4,
                                      num_key_value_heads=4, intermediate_size=width * 43 // 16, vocab_size=WORDS,
                                      max_position_embeddings=LENGTH)
    ids = words(BATCH, LENGTH)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def t5(layers=4, width=WIDTH):
    config = transformers.T5Config(num_layers=layers, num_decoder_layers=layers, d_model=width, d_kv=width // 4,
                                   d_ff=4 * width, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0)
    ids = words(BATCH, LENGTH)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def mixtral(layers=4, width=WIDTH):
    config = transformers.MixtralConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=4,
                                        num_key_value_heads=4, intermediate_size=2 * width, vocab_size=WORDS,
                                        max_position_embeddings=LENGTH, num_local_experts=4)
    ids = words(BATCH, LENGTH)
    return transformers.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def convnext():
    return _of_timm("convnext_atto", 64, drop_path_rate=0.1)


def swin():
    return _of_timm("swin_tiny_patch4_window7_224", 56, img_size=56, depths=(2, 2), embed_dim=48, num_heads=(3, 6), drop_path_rate=0.1)


def _of_timm(name, size, **options):
    import timm

    model = Classifier(timm.create_model(name, num_classes=10, **options))
    return model, {"images": torch.randn(BATCH, 3, size, size), "labels": torch.randint(0, 10, (BATCH,))}


class Classifier(torch.nn.Module):
    """Gives the loss, as the models of transformers do."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, images, labels):
        return types.SimpleNamespace(loss=torch.nn.functional.cross_entropy(self.inner(images), labels))


MODELS = {"GPT-2": gpt2, "GPT-2 of 12 layers": lambda: gpt2(12, 128), "BERT": bert, "ViT": vit, "Llama": llama}
# For figures without times: few layers of width 128 compile sooner.
SMALL = {"GPT-2": lambda: gpt2(2, 128), "BERT": lambda: bert(2, 128), "ViT": lambda: vit(2, 128),
         "Llama": lambda: llama(2, 128), "T5": lambda: t5(2, 128), "Mixtral": lambda: mixtral(2, 128), "ConvNeXt": convnext, "Swin": swin,
         "ALBERT": lambda: albert(4, 128)}
# timm's, for images of 96 x 96.
NETWORKS = {name: functools.partial(_of_timm, name, 96) for name in (
    "resnet18", "resnet50", "densenet121", "mobilenetv3_small_100", "regnetx_002", "efficientnet_b0")}


def torch_compile(model):
    return torch.compile(model, dynamic=False)


def within(budget):
    return lambda model: reprise.compile(model, memory_budget=budget)


class Compiled(Step):
    """The model's forward is compiled when it first runs."""

    def __init__(self, name, compile=torch_compile, models=MODELS, context=contextlib.nullcontext, checkpoints=False):
        super().__init__(name, models)
        self.whole = self.model
        if checkpoints:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model = compile(self.model)
        with context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):  # to compile, to divide bytes among graphs, to correct
                self()

    def planned_peak(self):
        """Above what is live before the step, of all graphs of a step."""
        return self.model.memory_budget.planned_peak


def smallest(name, models=MODELS):
    """The step in the least bytes that reprise names."""
    live, asked = 0, "+1KiB"

    def compile(model):
        nonlocal live
        gc.collect()
        live = reprise.live_bytes()
        return reprise.compile(model, memory_budget=asked)

    for _ in range(6):
        try:
            return Compiled(name, compile, models)
        except reprise.BudgetError as error:
            asked = f"+{least_of(error) - live}"
    raise SystemExit(f"{name}: no budget of those that reprise named as the least was enough; the last was {asked}")
