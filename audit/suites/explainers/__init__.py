"""What every explainer of the catalog leaks, natively and hardened, on one small task each."""
