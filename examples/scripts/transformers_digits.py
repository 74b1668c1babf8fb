"""A Hugging Face trainer as a site, by one line: a small vision transformer reads digits.

delian simulate transformers_digits.py --devices 4 --set data.process_each=true
"""

import delian.client as client
import numpy as np
import transformers
from sklearn.datasets import load_digits

IMAGES = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


def rows_of(site: client.Site) -> list[dict]:
    """The site's digits."""
    pairs = zip(*load_digits(return_X_y=True), strict=True)
    rows = [{"pixel_values": x.reshape(1, 8, 8) / np.float32(16), "labels": y} for x, y in pairs]
    return rows[site.client :: site.clients or 1]


if __name__ == "__main__":
    own = rows_of(client.site())
    asked = transformers.ViTConfig(**IMAGES, **SHAPE, num_attention_heads=2)
    trainer = transformers.Trainer(
        transformers.ViTForImageClassification(asked),
        transformers.TrainingArguments("out", learning_rate=3e-3, report_to=[], save_steps=10**6),
        train_dataset=own[len(own) // 4 :],
        eval_dataset=own[: len(own) // 4],
        compute_metrics=lambda said: {
            "accuracy": (said.predictions.argmax(1) == said.label_ids).mean()
        },
    )
    client.patch(trainer).train()
