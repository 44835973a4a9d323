"""An encoder of sentence-transformers, made on the spot, trained with a contrastive loss and used to encode."""

PROGRAM = {"needs": ["sentence_transformers", "transformers", "tokenizers"], "jitter": {"stderr": True}}

import probe
import torch
from sentence_transformers import SentenceTransformer, models, util
from torch import nn
from transformers import BertConfig, BertModel

WORDS = "[PAD] a the cat dog sat ran on under mat tree".split()


class Encoder(nn.Module):
    """A BERT with random weights and a tokenizer of a few words: nothing is downloaded."""

    def __init__(self):
        super().__init__()
        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        self.bert = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **size))

    def tokenize(self, texts, **_options):
        rows = [[WORDS.index(word) for word in text.split()] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    preprocess = tokenize

    def forward(self, features, **_options):
        result = self.bert(features["input_ids"], features["attention_mask"])
        return {**features, "token_embeddings": result.last_hidden_state}


torch.manual_seed(0)
model = SentenceTransformer(modules=[Encoder(), models.Pooling(32)], device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
pairs = [("the cat sat", "a cat sat on the mat"), ("the dog ran", "a dog ran under the tree")]
for step in range(6):
    sides = [model.tokenize([pair[side] for pair in pairs]) for side in (0, 1)]
    first, second = (model({name: value.cuda() for name, value in side.items()})["sentence_embedding"] for side in sides)
    loss = torch.nn.functional.cross_entropy(util.cos_sim(first, second) * 20, torch.arange(2, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.tick()
    print(f"{step} {loss.item():.1f}")
print(model.encode(["the cat ran", "a tree"]).shape)
probe.done()
