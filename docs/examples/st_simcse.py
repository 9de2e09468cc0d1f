"""Unsupervised SimCSE as sentence-transformers' documentation trains it: every sentence is its own positive."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer

from trainables.data.sets import load_corpus, load_pairs
from trainables.scripts.trainer import ReportCallback


def train(config, report):
    encoder = Transformer(config["encoder"], max_seq_length=config["max_length"])
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())], device=config["device"])
    sentences = load_corpus(config["data"]["train"], "en", "sentences").columns["sentence"]
    data = Dataset.from_dict({"anchor": sentences}).shuffle(config["seed"]).select(range(config["sample_size"]))
    data = data.map(lambda row: {"positive": row["anchor"]})
    dev = load_pairs(config["data"]["dev"][0], "dev", "en")
    batch, steps = config["batch_size"], max(1, config["eval_examples"] // config["batch_size"])
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=config["checkpoints"],
            per_device_train_batch_size=batch,
            learning_rate=config["learning_rate"],
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
        loss=MultipleNegativesRankingLoss(model, scale=1 / config["temperature"]),
        evaluator=EmbeddingSimilarityEvaluator(dev.first, dev.second, list(dev.gold), name="stsb_dev"),
        callbacks=[ReportCallback(report, {"stsb_dev": "eval_stsb_dev_spearman_cosine"}, model.save_pretrained)],
    )
    trainer.train(resume_from_checkpoint=config["resume"])
