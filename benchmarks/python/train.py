"""A training script that knows nothing of reprise: a small GPT on random words. Its last line is the seconds that its
loop took on its thread."""

import time

import torch
from torch import nn

WORDS, WIDTH, LENGTH = 256, 128, 128
torch.set_num_threads(1)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        rows, length, _ = x.shape
        query, key, value = self.project(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.between(x))


model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *[Block() for _ in range(6)], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = torch.randint(0, WORDS, (100_000,))


def loss_of(rows=16):
    starts = torch.randint(len(text) - LENGTH - 1, (rows,))
    x = torch.stack([text[i:i + LENGTH] for i in starts])
    y = torch.stack([text[i + 1:i + LENGTH + 1] for i in starts])
    return nn.functional.cross_entropy(model(x).view(-1, WORDS), y.view(-1))


begin = time.thread_time()
for step in range(40):
    if step % 20 == 0:
        model.eval()
        with torch.no_grad():
            print("evaluated", loss_of().item())
        model.train()
    loss = loss_of()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(time.thread_time() - begin)
