"""BERT of the tiny HunyuanDiT: ids of many strings, and states. After `families`."""
import torch
from transformers import BertModel, BertTokenizer

from clip import strings
from common import FIXTURES, Book

FOLDER = FIXTURES / "tiny-hunyuan"


def make():
    tokenizer, model = BertTokenizer.from_pretrained(FOLDER / "tokenizer"), BertModel.from_pretrained(FOLDER / "text_encoder").eval()
    extra = ["İstanbul ÀÉÎ", "[CLS] a [MASK]", "猫 一只红色的圆", "a\u00adb\u200bc\ufffdd", "e\u0301 \u0301", "red-circle's (white)", "a[SEP]b [sep] [PAD][UNK]. [MASK"]
    book = Book("bert", "Ids by BertTokenizer of tests/fixtures/tiny-hunyuan/tokenizer, begin and end included; `cut`: padded and cut to 12. Where `states` is "
                "true, last_hidden_state [1, 12, 16] of its text_encoder on those with their mask.")
    for k, prompt in enumerate([*strings()[:150], *extra]):
        cut = tokenizer(prompt, padding="max_length", max_length=12, truncation=True, return_tensors="pt")
        case = {"prompt": prompt, "ids": tokenizer(prompt).input_ids, "cut": cut.input_ids[0].tolist(), "states": k % 30 == 0}
        tensors = {"states": model(cut.input_ids, attention_mask=cut.attention_mask).last_hidden_state} if case["states"] else {}
        assert not tensors or torch.isfinite(tensors["states"]).all()
        book.case(str(k), case, tensors)
    book.save()
