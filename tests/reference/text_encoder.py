"""T5 encoder states, padded as the pipeline pads."""
import torch

import families
from checkpoints import load
from common import PROMPT, Book
from tokens import PROMPTS


def make():
    book = Book("text_encoder", "T5 encoder of `checkpoint`: last_hidden_state [batch, length, d_model] for input_ids and mask [batch, length] "
                "(int64, 1 = token). Prompts are lower-cased and stripped, padded with 0 and cut to `length` (the last id stays </s>), as the "
                "pipeline does. Rows that the mask hides are in the states too (queries are not masked, keys are).")
    cases = [("tiny-pixart", [PROMPT], 120), ("tiny-pixart", [""], 120), ("tiny-pixart", ["A Red Circle ", PROMPTS[-1]], 120),
             ("tiny-pixart", [PROMPT, "", "café, 42% houses"], 24), ("tiny-pixart", [PROMPT], 5), ("tiny-pixart-1024", [PROMPT], 40), ("tiny-sigma-ms", families.LONG["prompts"], 512),
             ("tiny-sigma-ms", [families.LONG["prompts"][0], PROMPT], 256)]
    for k, (checkpoint, prompts, length) in enumerate(cases):
        pipe = families.load(checkpoint) if checkpoint == "tiny-sigma-ms" else load(checkpoint)
        tokens = pipe.tokenizer([p.lower().strip() for p in prompts], padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        states = pipe.text_encoder(tokens.input_ids, attention_mask=tokens.attention_mask)[0]
        assert torch.isfinite(states).all()
        book.case(f"case{k}", {"checkpoint": checkpoint, "prompts": prompts, "length": length},
                  {"input_ids": tokens.input_ids, "mask": tokens.attention_mask, "states": states})
    book.save()
