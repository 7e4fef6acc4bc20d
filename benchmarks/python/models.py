"""The networks of transformers that the Python benches train: random weights, width 128, one batch each."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()
WORDS, BATCH = 1000, 32


def words(batch, length):
    return torch.randint(0, WORDS, (batch, length))


def gpt2():
    config = transformers.GPT2Config(n_layer=6, n_embd=128, n_head=4, vocab_size=WORDS, n_positions=128)
    ids = words(BATCH, 128)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def bert():
    config = transformers.BertConfig(num_hidden_layers=6, hidden_size=128, num_attention_heads=4, intermediate_size=512,
                                     vocab_size=WORDS, max_position_embeddings=128)
    ids = words(BATCH, 128)
    return transformers.BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


def t5():
    config = transformers.T5Config(num_layers=4, num_decoder_layers=4, d_model=128, d_kv=32, d_ff=512, num_heads=4,
                                   vocab_size=WORDS, decoder_start_token_id=0)
    ids = words(BATCH, 96)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def llama():
    config = transformers.LlamaConfig(num_hidden_layers=6, hidden_size=128, num_attention_heads=4, num_key_value_heads=4,
                                      intermediate_size=384, vocab_size=WORDS, max_position_embeddings=128)
    ids = words(BATCH, 128)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids, "use_cache": False}


def vit():
    config = transformers.ViTConfig(num_hidden_layers=6, hidden_size=128, num_attention_heads=4, intermediate_size=512,
                                    image_size=48, patch_size=4, num_labels=10, hidden_dropout_prob=0.1,
                                    attention_probs_dropout_prob=0.1)
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": torch.randn(BATCH, 3, 48, 48), "labels": torch.randint(0, 10, (BATCH,))}


# As for training from random weights: dropout is 0.1, but for Llama, which has none.
MODELS = {"GPT-2": gpt2, "BERT": bert, "T5": t5, "Llama": llama, "ViT": vit}


class Step:
    """Forward, backward and dropping the gradients, always on the same batch and random numbers."""

    def __init__(self, name, models=MODELS):
        torch.manual_seed(1)
        self.model, self.batch = models[name]()
        self.model.train()

    def backward(self):
        torch.manual_seed(2)
        self.model(**self.batch).loss.backward()

    def drop(self):
        self.model.zero_grad(set_to_none=True)

    def __call__(self):
        self.backward()
        self.drop()

    def gradients(self):
        self.backward()
        found = [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]
        self.drop()
        return found


def same(ours, expected):
    return all(b is None if a is None else torch.equal(a, b) for a, b in zip(ours, expected))
