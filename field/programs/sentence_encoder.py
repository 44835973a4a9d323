"""An encoder of sentence-transformers, made on the spot, trained with a contrastive loss and used to encode."""

PROGRAM = {"needs": ["sentence_transformers", "transformers", "tokenizers"], "jitter": {"stderr": True}}

import probe
import torch
from sentence_transformers import SentenceTransformer, models, util
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

torch.manual_seed(0)
words = "a the cat dog sat ran on under mat tree".split()
vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
plain = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=32, **special).save_pretrained("encoder")
size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **size)).save_pretrained("encoder")
try:
    body = models.Transformer("encoder")
except OSError:  # on an emulated GPU weights are not written
    raise SystemExit("no weights")
model = SentenceTransformer(modules=[body, models.Pooling(body.get_word_embedding_dimension())], device="cuda")
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
