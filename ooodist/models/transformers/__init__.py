"""Models of transformer blocks: BERT, GPT and ViT."""
