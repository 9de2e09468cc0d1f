"""CoSENT as sentence-transformers' documentation trains it: pairs with scores, ranked by their cosines."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import CoSENTLoss
from sentence_transformers.models import Pooling, Transformer

from trainables.data.sets import load_pairs
from trainables.scripts.trainer import ReportCallback


def train(config, report):
    encoder = Transformer(config["encoder"], max_seq_length=config["max_length"])
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())], device=config["device"])
    scored, dev = (load_pairs(config["data"]["train"], split, "en") for split in ("train", "dev"))
    score = scored.gold / scored.gold.max()
    data = Dataset.from_dict({"sentence1": scored.first, "sentence2": scored.second, "score": list(score)})
    data = data.shuffle(config["seed"]).select(range(config["sample_size"]))
    steps = max(1, config["eval_examples"] // config["batch_size"])
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=config["checkpoints"],
            per_device_train_batch_size=config["batch_size"],
            learning_rate=config["learning_rate"],
            warmup_ratio=config["warmup_share"],
            num_train_epochs=1,
            seed=config["seed"],
            eval_strategy="steps",
            eval_steps=steps,
            save_strategy="steps",
            save_steps=steps,
            save_total_limit=2,
            logging_steps=20,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=data,
        loss=CoSENTLoss(model, scale=config["scale"]),
        evaluator=EmbeddingSimilarityEvaluator(dev.first, dev.second, list(dev.gold), name="stsb_dev"),
        callbacks=[ReportCallback(report, {"stsb_dev": "eval_stsb_dev_spearman_cosine"}, model.save_pretrained)],
    )
    trainer.train(resume_from_checkpoint=config["resume"])
