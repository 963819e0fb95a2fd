"""How many tokens a prompt has: counted with the model's own tokenizer, or bounded from above."""
