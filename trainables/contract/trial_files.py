"""Names of the files of a trial and of its study that both sides know: those that train and those that search."""

from __future__ import annotations

# In the trial's folder.
LAST = "last"  # what a trial needs to go on
STATE = f"{LAST}/state.pt"
SCRIPT_STATE = f"{LAST}/script.json"  # where a script's trial stands
SCRIPT_FOLDER = f"{LAST}/script"  # what the script itself wrote to go on from
WEIGHTS = "best/weights.safetensors"  # encoder and head of the best evaluation
MODEL = "best/model"  # of a script: the folder that it wrote at the best evaluation
CHECKPOINT = (WEIGHTS, MODEL)  # the one or the other: what of an ended trial takes room on disk
TRIAL = "best/trial.json"  # the trial's spec and the evaluation that the weights belong to
LOG = "log.txt"  # what the trial printed and warned, in its first and last part
SIMILARITIES = "best/similarities.npz"  # cosine of every dev pair at that evaluation

# In the study's folder.
TRIALS = "trials"  # holds the trials' folders
PAUSE_FILE = "PAUSE"  # while it is there, stopping trials save their state: they will be resumed


def study_folder(trial_folder: str) -> str:
    """The folder (or URI) of the study that a trial's folder belongs to; every node of a cluster reaches it."""
    return trial_folder.rsplit(f"/{TRIALS}/", 1)[0]
